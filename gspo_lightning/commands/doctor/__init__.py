"""``gspo doctor``: versions, devices, the sandbox and the noise of ratios on this machine."""
