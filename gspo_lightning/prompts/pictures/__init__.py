"""Pictures of records: where they stand, their files, and what becomes of a bad one."""
