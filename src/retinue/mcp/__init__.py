"""Tools that other programs bring: the client's side of the Model Context Protocol, as much of it as tools need."""
