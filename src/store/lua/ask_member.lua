-- Acquires a side of a read-write lock or a permit, or registers the client as waiting for it.
-- First come, first served: while clients wait, a client gets only what it was offered. A repeat by
-- the same owner, whose first reply was lost, finds its hold.
-- KEYS  1 lock, 2 fence, 3 queue of waiting clients
-- ARGV  1 kind and owner, 2 lease in ms, 3 life of the fence in ms, 4 kind and client id, 5 whether
--       the client is in the queue: 0 no; 1 no, and it joins if it must wait; 2 it may be; 3 it may
--       be, and another reader of it follows, 6 life of the queue in ms, 7 for how many ms a place
--       is offered, 8 the permits, 0 for a read-write lock, 9 `shard`
-- RETURNS the fence if a side is held now, or {1, fence or 0 of a permit, for how many more there
--         is room}; {0, ms until to look again or -1} if another owner holds it or waits for it
if foreign then
  return foreign
end
local kind = string.sub(ARGV[1], 1, 2)
-- A client that does not wait leaves an offer to the thread of it that does.
local me = ARGV[5] ~= '0' and ARGV[4] or nil
local queue, window, permits = KEYS[3], tonumber(ARGV[7]), tonumber(ARGV[8])
local shard = ARGV[9]
local queued = redis.pcall('exists', queue) == 1
local repeated, offered = false, false
if left ~= -2 then
  local ends = redis.call('zscore', KEYS[1], ARGV[1])
  repeated = ends and tonumber(ends) > now
  ends = me and not repeated and redis.call('zscore', KEYS[1], me .. ':0')
  offered = ends and tonumber(ends) > now
end
-- A client that goes by more permits may have offered it one that it must decline. If another
-- client waits, that gets the offer, and this one registers again only when it next asks: two that
-- must decline would else offer the place to each other again and again.
local declined = false
if offered and kind == 'p:' then
  local taken = redis.call('zcount', KEYS[1], '(' .. now, '+inf')
  if taken > permits then
    redis.call('zrem', KEYS[1], me .. ':0')
    offered, declined, permits = false, true, taken
  end
end
-- A client that has to wait is registered before any other write: a server that is out of memory
-- refuses the first write of a script only.
local serves = queued and not repeated and not offered
local joined = serves and me and not declined
if joined then
  redis.pcall('zadd', queue, 'nx', time[1] * 1000 + time[2] / 1000, me)
end

