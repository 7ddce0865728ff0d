"""Gateway: an endpoint that agents talk to, and the token trees of their conversations."""
