"""Pictures of records: columns and message parts, files, and errors."""
