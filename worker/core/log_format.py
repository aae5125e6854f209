"""The format of our own lines in the logs of launchers and ranks. Each time has its zone, as readers may be elsewhere."""

LINE = "%(asctime)s %(levelname)s %(message)s"
TIME = "%Y-%m-%d %H:%M:%S%z"
