"""A client for the tools of Model Context Protocol (MCP) servers."""
