"""Policies that read pictures: their processor, the features of pictures, and where tokens stand in them."""
