-- Watches, with the last entry that each watcher was notified of.
CREATE TABLE watches (
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    watcher TEXT NOT NULL,
    watching INTEGER NOT NULL,
    watch TEXT NOT NULL
) STRICT;

CREATE INDEX watches_by_session ON watches (session, id);
CREATE INDEX watches_by_watcher ON watches (watcher, id);
CREATE INDEX watches_on ON watches (id) WHERE watching = 1;

-- Interjections of watchers: one row per tool call that posted one.
CREATE TABLE interjections (
    id TEXT PRIMARY KEY,
    call TEXT NOT NULL UNIQUE,
    run TEXT NOT NULL,
    session TEXT NOT NULL,
    open INTEGER NOT NULL,
    interjection TEXT NOT NULL
) STRICT;

CREATE INDEX interjections_by_session ON interjections (session, open, id);
CREATE INDEX interjections_open ON interjections (id) WHERE open = 1;
CREATE INDEX interjections_by_run ON interjections (run, id);
