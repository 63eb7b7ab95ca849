"""The client side of the Model Context Protocol (MCP), as far as tools need it."""
