-- Part of the scripts after which a waiting client may get its turn.
-- KEYS  1 lock
-- SETS  `tell`

-- Tells a client, and returns how many listen, or no number if the server refuses to publish. In a
-- cluster that is by a sharded channel if the client has one at this node, because a message on any
-- other goes to all nodes: `shard` is the hash tag of such channels, or '' or nil. Redis 6.2 has
-- none, a client is not subscribed to one at once, and slots move; but each client listens on its
-- own channel at every master. The channels are those of `Keys`. Without another, the message is
-- the key of the lock: it may be free.
local function tell(client, shard, message)
  local channel, told = 'leasehold:wake:' .. client, 0
  if shard and shard ~= '' then
    told = redis.pcall('spublish', channel .. ':{' .. shard .. '}', message or KEYS[1])
  end
  if type(told) ~= 'number' or told == 0 then
    told = redis.pcall('publish', channel, message or KEYS[1])
  end
  return told
end

