"""What both sides say: `wire` (data plane), `errors` (the exception tree); control.proto is for memsvc alone."""
