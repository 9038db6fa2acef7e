"""Python imports this by itself when its folder is on PYTHONPATH: worker processes fail like the one that starts them."""

from tests.support.campaigns.failing_system import install_from_environment

install_from_environment()
