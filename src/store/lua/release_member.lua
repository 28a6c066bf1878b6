-- Ends a hold of a read-write lock or a semaphore, or turns a writer into a reader. Waiting clients
-- may then get their turn. A hold whose lease is over is left for the next acquire to remove.
-- KEYS  1 lock, 2 queue of waiting clients, 3 if a writer's tenure had more tokens: fence. While
--       the slot of a cluster moves, the lock alone, and then no client gets its turn
-- ARGV  1 kind and owner, 2 for how many ms a place is then offered, 3 the permits, 0 for a
--       read-write lock, 4 `force` to tell the client of the hold that it was ended, else '', 5
--       `shard`, 6 and 7 if a writer becomes this reader: its lease and a whole one in ms, else '',
--       8 and 9 with KEYS 3: the last token that was used, and the last one of the tenure
-- USES  `prolong`, `tell` and `serve`
-- RETURNS 1, or 0 if the hold is gone
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local member, permits, lease = ARGV[1], tonumber(ARGV[3]), ARGV[6] ~= '' and ARGV[6]
local ended = lease and 'w' .. string.sub(member, 2) or member
local ends = redis.call('zscore', KEYS[1], ended)
if lease and not ends then
  -- A repeat.
  ends = redis.call('zscore', KEYS[1], member)
end
ends = tonumber(ends)
if not ends or ends <= now then
  return 0
end
if lease then
  prolong(member, ends, now, lease, ARGV[7])
end
local has_ended = redis.call('zrem', KEYS[1], ended) == 1
-- Readers get the token of the last writer, not one that no writer has had.
if has_ended and KEYS[3] and redis.pcall('get', KEYS[3]) == ARGV[9] then
  redis.pcall('set', KEYS[3], ARGV[8], 'keepttl')
end
if ARGV[4] == 'force' then
  local id, number = string.match(member, '^.:(.*):(%x+)$')
  tell(id, ARGV[5], 'leasehold:ended:' .. number .. ':' .. KEYS[1])
end
if KEYS[2] and redis.pcall('exists', KEYS[2]) == 1 then
  if permits > 0 then
    -- Waiting clients may assume more permits. The number of permits taken, this one included, is
    -- safe.
    permits = math.max(permits, redis.call('zcount', KEYS[1], '(' .. now, '+inf') + 1)
  end
  serve(KEYS[2], now, tonumber(ARGV[2]), permits, ARGV[5])
end
return 1
