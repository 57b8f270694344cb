// Owns the right to a data folder: one process at a time.
//
// The lock is SQLite's on an empty database file, because that is the one lock of the kernel's that Node can take without
// a native package: it ends with the process that holds it, however that ends, so it can neither go stale nor be mistaken
// for somebody else's by a re-used process ID, as a file with a process ID in it can.

import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { DatabaseSync } from 'node:sqlite';

export interface DataLock {
  /** Does nothing when it has been released before. */
  release(): void;
}

export class DataInUse extends Error {
  override readonly name = 'DataInUse';
}

/** Throws DataInUse when another process, or another holder in this one, has it. Never waits. */
export function lockData(dataDir: string): DataLock {
  const noteFile = path.join(dataDir, 'lock.owner');
  const database = new DatabaseSync(path.join(dataDir, 'lock'), { timeout: 0 });
  try {
    database.exec('BEGIN EXCLUSIVE');
  } catch (cause) {
    database.close();
    const isBusy = cause instanceof Error && 'errcode' in cause && cause.errcode === 5;
    if (!isBusy) throw cause;
    const owner = readNote(noteFile);
    // Without the cause: "database is locked" would only raise the question which database is meant.
    throw new DataInUse(`${dataDir} is in use by ${owner}. Stop that first, or give this one another data folder.`);
  }
  writeFileSync(noteFile, `process ${process.pid} (${process.argv.slice(1, 3).join(' ')})`);
  return {
    release: () => {
      if (database.isOpen) database.close();
    },
  };
}

function readNote(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return 'another process';
  }
}
