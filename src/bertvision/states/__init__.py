"""States: live from the backbone, or from a store on disk."""
