"""Scripts for working on the repository; not part of the package."""
