/** Stand-in for the module `k6/execution`: only what our scripts use. */
import { currentTask } from '../host.ts';

const scenario = {
  get name(): string {
    return running().name;
  },
  get executor(): string {
    return running().executor;
  },
  /** Counted from 0 in each scenario, over all VUs. */
  get iterationInTest(): number {
    return running().iterationInTest;
  },
};

function running() {
  const there = currentTask()?.scenario;
  if (there === undefined) throw new Error('getting scenario information outside of a scenario is not supported');
  return there;
}

export default { scenario };
