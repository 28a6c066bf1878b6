-- Changes a hold, or only checks it. Never revives one that is gone or has expired. A server that
-- is out of memory does not refuse a mere renewal. No renewal shortens what another request has
-- given a hold: it may arrive late, after a longer one of a process that has adopted the hold. But
-- none of them gives more than a whole lease.
-- KEYS  1 lock, 2 fence, if the counter of tokens is raised to that of the hold, or lives on with a
--       side of a read-write lock; or with `watch` the queue of waiting clients. A renewal or
--       `watch` without this key, as while the slot moves in a cluster, changes the lock alone
-- ARGV  1 owner, prefixed with the kind if several can hold it, 2 lease in ms, or 0 to leave the
--       end of the hold as it is, 3 a whole lease in ms: shortly before an age limit, the lease is
--       shorter, 4 depth, '' to leave it as it is, `watch` to notify the owner's client when
--       another one waits, which a zero at the start of the depth then shows, or `member` if
--       several can hold it, 5 with KEYS 2: life of the fence in ms, 6 with KEYS 2: token, unless
--       several can hold it
-- USES  `at_least`, `prolong` and `is_wanted`
-- RETURNS 1, or 0 if the hold is gone, or with `watch` 2 if another client waits
local owner, lease, whole, next = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if next == 'member' then
  local time = redis.call('time')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local ends = tonumber(redis.call('zscore', KEYS[1], owner))
  if not ends or ends <= now then
    return 0
  end
  if lease ~= '0' then
    prolong(owner, ends, now, lease, whole)
    if ends > now + whole then
      local last = redis.call('zrange', KEYS[1], -1, -1, 'withscores')[2]
      redis.call('pexpireat', KEYS[1], last)
    end
    if KEYS[2] then
      -- Readers that join later get the same token from the counter.
      redis.pcall('pexpire', KEYS[2], at_least(ARGV[5], KEYS[2]))
    end
  end
  return 1
end
local depth = redis.call('hget', KEYS[1], owner) or '0'
if depth == '0' then
  return 0
end
if KEYS[2] and next ~= 'watch' then
  local last = tonumber(redis.call('get', KEYS[2]) or 0)
  local life = at_least(ARGV[5], KEYS[2])
  if not last or last < tonumber(ARGV[6]) then
    redis.call('set', KEYS[2], ARGV[6], 'px', life)
  else
    -- A write, so that the WAIT that may follow on this connection covers the counter.
    redis.call('pexpire', KEYS[2], life)
  end
end
local watched = string.sub(depth, 1, 1) == '0'
if next ~= '' and next ~= 'watch' then
  redis.call('hset', KEYS[1], owner, (watched and '0' or '') .. next)
end
if lease ~= '0' then
  -- A write in any case, so that the WAIT that may follow covers the lease.
  redis.call('pexpire', KEYS[1], at_least(lease, KEYS[1], whole))
end
if next ~= 'watch' then
  return 1
elseif not watched then
  -- A server that is out of memory may refuse it: the client asks again with each renewal.
  redis.pcall('hset', KEYS[1], owner, '0' .. depth)
end
return KEYS[2] and is_wanted(KEYS[2], owner) and 2 or 1
