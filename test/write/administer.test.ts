/** What operators are told: done means done. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { TenantId } from '../../src/timeline/ids.ts';
import { startTestService, type TestService, userId } from '../harness/service.ts';

let service: TestService;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service.stop());

it('a tenant that is not there is refused by every verb that takes one, and nothing is stored', async () => {
  const { administer } = service.service;
  const signal = AbortSignal.timeout(10_000);
  const tenant = 'no-such-tenant' as TenantId;
  for (const attempt of [
    () => administer.suspendAuthor({ tenant, signal }, userId('ada')),
    () => administer.restoreAuthor({ tenant, signal }, userId('ada')),
    () => administer.createKey(signal, { tenant, role: 'service' }),
  ]) {
    await expect(attempt()).rejects.toMatchObject({ reason: 'TENANT_NOT_FOUND' });
  }
  expect(await service.database.sql('SELECT 1 FROM authors WHERE tenant_id = $1', [tenant])).toEqual([]);
});
