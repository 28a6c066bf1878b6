-- Sends a message about threads that wait, or may wait, for each other: to the client that holds
-- the lock, or to other clients. Nothing is written here.
-- KEYS  1 lock
-- ARGV  1 message, 2 `shard`, from 3 on the ids of the clients that get it; without any, the
--       holder's client does if it is one of this library
-- USES  `find_holder` and `tell`
-- RETURNS 1, or 0 if it was sent to no client
local answer = 0
local function send(client, number)
  tell(client, ARGV[2], 'leasehold:probe:' .. number .. ':' .. ARGV[1])
  answer = 1
end
for i = 3, #ARGV do
  send(ARGV[i], '0')
end
if #ARGV == 2 then
  local _, holder, depth = find_holder()
  local owner = '^(.*' .. id .. '):(%x+)$'
  local client, number = string.match(holder or '', owner)
  if client and depth ~= '0' then
    send(client, number)
  end
end
return answer
