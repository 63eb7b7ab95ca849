"""Public fakes for tests, and a fake model server on the loopback interface."""
