"""What Retinue costs, beside the bare calls and beside others, measured on this machine."""
