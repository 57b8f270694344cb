import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { findPrometheus } from './prometheus.ts';

describe('where promtool and prometheus are missing and cannot be fetched', () => {
  const said: string[] = [];
  const machine = {
    searchPath: undefined,
    fetchPackage: () => Promise.reject(new Error('Command failed: apt-get -q download prometheus\nE: no route')),
    say: (text: string) => void said.push(text),
  };

  it('CI fails, and says why', async () => {
    await expect(findPrometheus({ ...machine, isCi: true })).rejects.toThrow(/No promtool.*apt-get.*no route/);
    expect(said).toEqual([]);
  });

  it('a developer is told what is not checked, and how to get them', async () => {
    await expect(findPrometheus({ ...machine, isCi: false })).resolves.toBeUndefined();
    expect(said.join()).toMatch(/!!!!\nSKIPPED: alerts.*\n.*no route.*apt-get install/);
  });
});

it('both programs are taken from where they are, and nothing is fetched', async () => {
  const folder = mkdtempSync(path.join(tmpdir(), 'tributary-programs-'));
  try {
    for (const name of ['promtool', 'prometheus']) {
      writeFileSync(path.join(folder, name), '');
      chmodSync(path.join(folder, name), 0o755);
    }
    const fetchPackage = () => Promise.reject(new Error('fetched'));
    expect(await findPrometheus({ searchPath: folder, isCi: true, fetchPackage, say: () => undefined })).toEqual({
      promtool: path.join(folder, 'promtool'),
      prometheus: path.join(folder, 'prometheus'),
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
});
