from retinue.app.application import App as App
from retinue.app.doctor import Finding as Finding
from retinue.app.open_app import look as look
from retinue.app.open_app import open as open  # noqa: A004  (`retinue.open` is the promise)
