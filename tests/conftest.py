"""What every test gets; `lanes` says which tests run here at all."""

pytest_plugins = ["lanes", "instances"]
