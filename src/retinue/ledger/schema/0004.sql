-- What must not happen twice: a row before it begins, changed when it has ended.
CREATE TABLE deeds (
    call TEXT PRIMARY KEY,
    run TEXT NOT NULL,
    progress TEXT NOT NULL,
    deed TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX deeds_by_run ON deeds (run, call);
