"""HTTP: routes that call control or read the store. No decisions here."""
