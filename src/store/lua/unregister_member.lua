-- Removes a client from the queue, and takes back an offer to it. The clients behind it may have
-- their turn now.
-- KEYS  1 lock, 2 queue of waiting clients
-- ARGV  1 kind and client id, 2 for how many ms a place is offered then, 3 the permits, 0 for a
--       read-write lock, 4 `shard`
-- USES  `now` and `foreign`
-- RETURNS 1, or 0 if the client was not in the queue
if foreign then
  return foreign
end
local answer, queue, window, permits, me =
  0, KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3]), nil
local shard = ARGV[4]
if redis.pcall('zrem', queue, ARGV[1]) == 1 then
  answer = 1
end
local ends = left ~= -2 and tonumber(redis.pcall('zscore', KEYS[1], ARGV[1] .. ':0'))
if ends and redis.pcall('zrem', KEYS[1], ARGV[1] .. ':0') == 1 then
  answer = 1
  if permits > 0 and ends > now then
    -- Those who wait may go by more permits: as many as with the offer are right.
    permits = math.max(permits, redis.call('zcount', KEYS[1], '(' .. now, '+inf') + 1)
  end
end
local serves = answer == 1 and redis.pcall('exists', queue) == 1

