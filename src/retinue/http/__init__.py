"""An HTTP/1.1 client for model servers, MCP servers and web pages."""
