import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { decideRedis, forwards, needsServers, reasonToInstall, wasAbandoned } from '../../src/embedded/install.mjs';
import { projectRoot } from '../../src/embedded/place.ts';

describe('Redis', () => {
  function decide(given: {
    readonly programs?: readonly string[];
    readonly override?: string;
    readonly isRoot?: boolean;
    readonly platform?: NodeJS.Platform;
  }): ReturnType<typeof decideRedis> {
    const { programs = [], override, isRoot = false, platform = 'linux' } = given;
    return decideRedis({
      override,
      searchPath: '/usr/local/bin:/usr/bin',
      isExecutable: (file) => programs.includes(file),
      isRoot,
      platform,
    });
  }

  it('is taken from PATH, Redis before Valkey', () => {
    expect(decide({ programs: ['/usr/bin/redis-server', '/usr/local/bin/valkey-server'] })).toEqual({
      kind: 'use',
      path: '/usr/bin/redis-server',
    });
    expect(decide({ programs: ['/usr/local/bin/valkey-server'] })).toEqual({
      kind: 'use',
      path: '/usr/local/bin/valkey-server',
    });
  });

  it('is taken from TRIBUTARY_REDIS_SERVER first, and never silently from elsewhere', () => {
    const programs = ['/usr/bin/redis-server', '/opt/redis'];
    expect(decide({ programs, override: '/opt/redis' })).toEqual({ kind: 'use', path: '/opt/redis' });
    expect(decide({ programs, override: '/opt/gone' })).toEqual({
      kind: 'stop',
      message: expect.stringContaining('TRIBUTARY_REDIS_SERVER is /opt/gone'),
    });
  });

  it('is installed by root where there is apt-get', () => {
    expect(decide({ programs: ['/usr/bin/apt-get'], isRoot: true })).toEqual({ kind: 'apt' });
  });

  it.each([
    [
      'a user of Debian',
      { programs: ['/usr/bin/apt-get'] },
      'sudo apt-get install -y --no-install-recommends redis-server',
    ],
    ['a user of Fedora', { programs: ['/usr/bin/dnf'] }, 'sudo dnf install -y redis'],
    ['root on Alpine', { programs: ['/usr/bin/apk'], isRoot: true }, 'apk add redis'],
    ['a user of macOS', { platform: 'darwin' }, 'brew install redis'],
  ] as const)('is left to %s, with the exact command', (_who, given, command) => {
    const decision = decide(given);
    expect(decision.kind).toBe('stop');
    expect(decision.kind === 'stop' && decision.message.split('\n')).toContain(`  ${command}`);
  });
});

describe('packages', () => {
  const wanted = {
    packages: {
      '': {},
      'node_modules/pg': { version: '8.0.0', integrity: 'sha512-a' },
      'node_modules/pg/node_modules/split2': { version: '4.0.0', integrity: 'sha512-b' },
      'node_modules/for-another-system': { version: '1.0.0', integrity: 'sha512-c', optional: true },
    },
  };
  const complete = {
    packages: {
      'node_modules/pg': { version: '8.0.0', integrity: 'sha512-a' },
      'node_modules/pg/node_modules/split2': { version: '4.0.0', integrity: 'sha512-b' },
    },
  };
  const isPresent = (): boolean => true;

  it('are left alone when they are what the lock file says, apart from those for other systems', () => {
    expect(reasonToInstall({ wanted, installed: complete, isPresent })).toBeUndefined();
  });

  it('are installed into a fresh clone, and after an installation that was cut short', () => {
    expect(reasonToInstall({ wanted, installed: undefined, isPresent })).toMatch(/missing or incomplete/);
  });

  it('are installed when one is missing, removed by hand, or of another version', () => {
    const { 'node_modules/pg': pg } = complete.packages;
    expect(reasonToInstall({ wanted, installed: { packages: { 'node_modules/pg': pg } }, isPresent })).toBe(
      'split2 is not installed',
    );
    const isGone = (location: string): boolean => location !== 'node_modules/pg';
    expect(reasonToInstall({ wanted, installed: complete, isPresent: isGone })).toBe('pg is not installed');
    const older = { packages: { ...complete.packages, 'node_modules/pg': { ...pg, version: '7.0.0' } } };
    expect(reasonToInstall({ wanted, installed: older, isPresent })).toBe('pg is 7.0.0, package-lock.json wants 8.0.0');
  });
});

describe('scripts', () => {
  it('that start no servers run without Redis', () => {
    expect(['test/check.ts', './src/main.ts'].map(needsServers)).toEqual([false, false]);
    expect(['src/start.ts', 'test/run.ts', 'load/bench/main.ts'].map(needsServers)).toEqual([true, true, true]);
  });

  it('are told once that they are interrupted', () => {
    expect(forwards({ signal: 'SIGINT', hasTerminal: true })).toBe(false);
    expect(forwards({ signal: 'SIGINT', hasTerminal: false })).toBe(true);
    expect(forwards({ signal: 'SIGTERM', hasTerminal: true })).toBe(true);
  });

  it('end with the npm that started them, and outlive a shell that did', () => {
    expect(wasAbandoned({ parent: 70, parentNow: 1, isRunByNpm: true })).toBe(true);
    expect(wasAbandoned({ parent: 70, parentNow: 70, isRunByNpm: true })).toBe(false);
    expect(wasAbandoned({ parent: 70, parentNow: 1, isRunByNpm: false })).toBe(false);
  });

  it('do not start without a Redis they need: exit code 1, and what to do', async () => {
    const emptyFolder = mkdtempSync(path.join(tmpdir(), 'tributary-path-'));
    try {
      const run = promisify(execFile)(process.execPath, ['src/embedded/install.mjs', 'src/start.ts'], {
        cwd: projectRoot,
        env: { PATH: emptyFolder },
      });
      await expect(run).rejects.toMatchObject({
        code: 1,
        stdout: '',
        stderr: expect.stringMatching(/TRIBUTARY_REDIS_SERVER/),
      });
    } finally {
      rmSync(emptyFolder, { recursive: true });
    }
  });

  it('get their arguments, and the wrapper ends with their exit code', async () => {
    const run = promisify(execFile)(
      process.execPath,
      ['src/embedded/install.mjs', 'test/embedded/echo.ts', '--flag', 'two words', '7'],
      { cwd: projectRoot },
    );
    await expect(run).rejects.toMatchObject({ code: 7, stdout: '["--flag","two words","7"]\n', stderr: '' });
  });
});
