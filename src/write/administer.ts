/** Owns what operators do until AdminService: tenants, keys, suspending and restoring authors, moderating posts. A key's text is seen once, when it is made. */
import { createHash } from 'node:crypto';
import { TributaryError } from '../errors.ts';
import type { Call, Random } from '../runtime.ts';
import type { ShownClass } from '../store/postgres/author-classes.ts';
import type { RecountResult, RecountWhich } from '../store/postgres/counters.ts';
import type { EventKind } from '../store/postgres/outbox.ts';
import type { KeyRole } from '../store/postgres/tenants.ts';
import type { PostId, TenantId, UserId } from '../timeline/ids.ts';
import type { ModerationState, WrittenPost } from '../timeline/post.ts';
import type { ModeratePost } from './edit.ts';
import type { Forget } from './forget.ts';

export interface Administer {
  /** Throws TENANT_EXISTS. */
  createTenant(signal: AbortSignal, tenant: TenantId): Promise<void>;
  /** The key's text: `tk_` and 256 random bits in base64url. Throws TENANT_NOT_FOUND. */
  createKey(signal: AbortSignal, input: { readonly tenant: TenantId; readonly role: KeyRole }): Promise<string>;
  /** False where no such key was in force. A process that knew the key takes it for as long as its cache says. */
  revokeKey(signal: AbortSignal, key: string): Promise<boolean>;
  /** Hides all posts of the author from everybody, at once. Throws TENANT_NOT_FOUND; any ID is an author. */
  suspendAuthor(call: Call, author: UserId): Promise<void>;
  /** Shows them again, at once. Throws TENANT_NOT_FOUND. */
  restoreAuthor(call: Call, author: UserId): Promise<void>;
  /** Counts followers anew, of one author or of all after one. Throws TENANT_NOT_FOUND. */
  recountFollowers(call: Call, which: RecountWhich): Promise<RecountResult>;
  /** How the author's posts reach followers, as an operator is shown it; undefined for one of whom nothing is stored. Throws TENANT_NOT_FOUND. */
  showAuthorClass(call: Call, author: UserId): Promise<ShownClass | undefined>;
  /** Throws POST_NOT_FOUND. */
  moderatePost(call: Call, input: { readonly postId: PostId; readonly state: ModerationState }): Promise<WrittenPost>;
}

export interface AuthorTransaction {
  setLifecycle(input: {
    readonly tenant: TenantId;
    readonly author: UserId;
    readonly lifecycle: 'active' | 'suspended';
  }): Promise<boolean>;
  appendEvent(kind: EventKind, payload: Readonly<Record<string, string>>): Promise<void>;
}

export interface AdministerParts {
  readonly forget: Forget;
  readonly random: Random;
  readonly hasTenant: (call: Call) => Promise<boolean>;
  readonly insertTenant: (signal: AbortSignal, tenant: TenantId) => Promise<boolean>;
  readonly insertApiKey: (
    signal: AbortSignal,
    key: { readonly hash: Buffer; readonly tenant: TenantId; readonly role: KeyRole },
  ) => Promise<boolean>;
  readonly revokeApiKey: (signal: AbortSignal, hash: Buffer) => Promise<boolean>;
  readonly findPostAuthor: (call: Call, postId: PostId) => Promise<UserId | undefined>;
  readonly moderate: ModeratePost;
  readonly recountFollowers: (call: Call, which: RecountWhich) => Promise<RecountResult>;
  readonly loadShownClass: (call: Call, author: UserId) => Promise<ShownClass | undefined>;
  readonly transaction: <Result>(call: Call, work: (authors: AuthorTransaction) => Promise<Result>) => Promise<Result>;
}

const KEY_BYTES = 32;

/** The hash under which a key is stored and looked up. */
export function hashApiKey(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}

export function createAdminister(parts: AdministerParts): Administer {
  async function setLifecycle(call: Call, author: UserId, lifecycle: 'active' | 'suspended'): Promise<void> {
    // A misspelled tenant must not look like a suspended author.
    if (!(await parts.hasTenant(call))) throw tenantNotFound();
    await parts.transaction(call, async (authors) => {
      if (await authors.setLifecycle({ tenant: call.tenant, author, lifecycle })) {
        await authors.appendEvent('author_changed', { authorId: author });
      }
    });
    await parts.forget(call, { authors: [author] });
  }

  return {
    async createTenant(signal, tenant) {
      if (!(await parts.insertTenant(signal, tenant)))
        throw new TributaryError('TENANT_EXISTS', { message: 'there is such a tenant already' });
    },

    async createKey(signal, { tenant, role }) {
      const key = `tk_${parts.random.bytes(KEY_BYTES).toString('base64url')}`;
      if (!(await parts.insertApiKey(signal, { hash: hashApiKey(key), tenant, role }))) {
        throw tenantNotFound();
      }
      return key;
    },

    revokeKey: (signal, key) => parts.revokeApiKey(signal, hashApiKey(key)),
    suspendAuthor: (call, author) => setLifecycle(call, author, 'suspended'),
    restoreAuthor: (call, author) => setLifecycle(call, author, 'active'),

    async recountFollowers(call, which) {
      if (!(await parts.hasTenant(call))) throw tenantNotFound();
      return parts.recountFollowers(call, which);
    },

    async showAuthorClass(call, author) {
      if (!(await parts.hasTenant(call))) throw tenantNotFound();
      return parts.loadShownClass(call, author);
    },

    async moderatePost(call, { postId, state }) {
      const author = await parts.findPostAuthor(call, postId);
      if (author === undefined) throw new TributaryError('POST_NOT_FOUND', { message: 'there is no such post' });
      return parts.moderate(call, { author, postId, state });
    },
  };
}

function tenantNotFound(): TributaryError {
  return new TributaryError('TENANT_NOT_FOUND', { message: 'there is no such tenant' });
}
