"""Model providers: adapters that send requests to models and return replies."""
