-- Ends a hold of a read-write lock or a semaphore; or removes a client from the queue, and takes
-- back an offer to it. The waiting clients may get their turn then.
-- KEYS  1 lock, 2 queue of waiting clients
-- ARGV  1 kind and owner, or kind and client id, 2 for how many ms a place is offered then, 3 the
--       permits, 0 for a read-write lock, 4 `queued` to remove a client, `force` to tell the client
--       of the hold that it was ended, else '', 5 `shard`
-- USES  `find_members`, `tell` and `serve`
-- RETURNS 1, or 0 if the hold is gone or the client was not in the queue
local time = redis.call('time')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local queued, member, permits, answer = ARGV[4] == 'queued', ARGV[1], tonumber(ARGV[3]), 0
if queued then
  local _, foreign = find_members()
  if foreign then
    return foreign
  end
  answer = redis.pcall('zrem', KEYS[2], member) == 1 and 1 or 0
  member = member .. ':0'
end
local ends = tonumber(redis.call('zscore', KEYS[1], member))
if ends then
  redis.call('zrem', KEYS[1], member)
  answer = (queued or ends > now) and 1 or 0
elseif answer == 0 then
  return 0
end
local id, number = string.match(member, '^.:(.*):(%x+)$')
if ARGV[4] == 'force' and answer == 1 and id then
  tell(id, ARGV[5], 'leasehold:ended:' .. number .. ':' .. KEYS[1])
end
if redis.pcall('exists', KEYS[2]) == 1 then
  if permits > 0 and ends and ends > now then
    -- Waiting clients may assume more permits: as many as with this one are right.
    permits = math.max(permits, redis.call('zcount', KEYS[1], '(' .. now, '+inf') + 1)
  end
  serve(KEYS[2], now, tonumber(ARGV[2]), permits, ARGV[5])
end
return answer
