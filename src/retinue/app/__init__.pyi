from retinue.app.application import App as App
from retinue.app.doctor import Finding as Finding
from retinue.app.opening import look as look
from retinue.app.opening import open as open  # noqa: A004  (`retinue.open` is the promise)
