"""Parts of a transformer; each layer has its forward pass and its input gradient, which `analytic` joins."""
