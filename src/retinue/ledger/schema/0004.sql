-- Side effects that must not happen twice: inserted before the tool call starts, updated when it has ended.
CREATE TABLE deeds (
    call TEXT PRIMARY KEY,
    run TEXT NOT NULL,
    progress TEXT NOT NULL,
    deed TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX deeds_by_run ON deeds (run, call);
