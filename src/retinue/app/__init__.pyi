from retinue.app.application import App as App
from retinue.app.doctor import Finding as Finding
from retinue.app.open_app import open as open  # noqa: A004  (`retinue.open` is the public name)
from retinue.app.open_app import open_read_only as open_read_only
