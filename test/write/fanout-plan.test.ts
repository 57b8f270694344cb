import { expect, it } from 'vitest';
import { planFanout } from '../../src/write/fanout-plan.ts';

it.each([
  { subject: undefined, plan: { kind: 'nothing', why: 'missing' } },
  { subject: { deleted: true }, plan: { kind: 'nothing', why: 'deleted' } },
  { subject: { moderation: 'hidden' }, plan: { kind: 'nothing', why: 'moderated' } },
  { subject: { lifecycle: 'erased' }, plan: { kind: 'nothing', why: 'author_erased' } },
  { subject: { lifecycle: 'suspended' }, plan: { kind: 'followers' } },
  { subject: { visibility: 'private' }, plan: { kind: 'author_only' } },
  { subject: { visibility: 'followers' }, plan: { kind: 'followers' } },
  { subject: { moderation: 'sensitive' }, plan: { kind: 'followers' } },
  { subject: { fanoutClass: 'both' }, plan: { kind: 'followers', listEpoch: 7 } },
  { subject: { fanoutClass: 'pull' }, plan: { kind: 'pulled', listEpoch: 7 } },
  { subject: { fanoutClass: 'pull', visibility: 'private' }, plan: { kind: 'author_only' } },
  { subject: { fanoutClass: 'pull', lifecycle: 'suspended' }, plan: { kind: 'pulled', listEpoch: 7 } },
  { subject: { fanoutClass: 'pull', moderation: 'hidden' }, plan: { kind: 'nothing', why: 'moderated' } },
] as const)('plans $plan for $subject', ({ subject, plan }) => {
  const usual = {
    visibility: 'public',
    moderation: 'clear',
    deleted: false,
    lifecycle: 'active',
    fanoutClass: 'push',
    classEpoch: 7,
  } as const;
  expect(planFanout(subject && { ...usual, ...subject })).toEqual(plan);
});
