"""Math rewards."""
