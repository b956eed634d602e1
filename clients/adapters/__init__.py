"""One small file per framework; each imports its framework, and nothing else imports it."""
