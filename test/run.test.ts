import { describe, expect, it } from 'vitest';
import type { JsonTestResults } from 'vitest/node';
import { tallyTests } from './run.ts';

function results(passed: number, files: readonly (readonly ('passed' | 'failed')[] | 'broken')[]): JsonTestResults {
  const testResults = files.map((file) => ({
    status: file === 'broken' || file.includes('failed') ? 'failed' : 'passed',
    assertionResults: file === 'broken' ? [] : file.map((status) => ({ status })),
  }));
  const numFailedTests = files
    .flatMap((file) => (file === 'broken' ? [] : file))
    .filter((each) => each === 'failed').length;
  return { numPassedTests: passed, numFailedTests, testResults } as unknown as JsonTestResults;
}

describe('the last line', () => {
  it('counts tests', () => {
    expect(tallyTests(results(2, [['passed', 'passed']]), 0)).toEqual({ passed: 2, failed: 0 });
    expect(tallyTests(results(1, [['passed', 'failed', 'failed']]), 1)).toEqual({ passed: 1, failed: 2 });
  });

  it('counts a file that could not be loaded as a failure', () => {
    expect(tallyTests(results(1, [['passed'], 'broken']), 1)).toEqual({ passed: 1, failed: 1 });
  });

  it('counts an error outside of every test as a failure', () => {
    expect(tallyTests(results(1, [['passed']]), 1)).toEqual({ passed: 1, failed: 1 });
    expect(tallyTests(results(1, [['passed']]), null)).toEqual({ passed: 1, failed: 1 });
  });

  it('counts a run without tests, or without results, as a failure', () => {
    expect(tallyTests(results(0, []), 0)).toEqual({ passed: 0, failed: 1 });
    expect(tallyTests(undefined, 0)).toEqual({ passed: 0, failed: 1 });
  });
});
