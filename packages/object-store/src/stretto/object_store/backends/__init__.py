"""One module a back end; each imports its SDK when it is used, and maps its errors in one place."""
