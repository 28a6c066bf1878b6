-- Part of the scripts that have looked at what a key has: says what that is, if they have found it
-- to be something else. What is in order costs nothing here.
-- KEYS  1 lock
-- USES  `left`; `foreign`, if it is `no lock` or `no members`
-- SETS  `foreign` to an error reply that says what the key has
if type(foreign) == 'string' then
  local kind, found = redis.call('type', KEYS[1]).ok, nil
  if kind == 'string' then
    found = left < 0 and 'a string without a TTL' or 'a lock of another library'
  elseif kind == 'hash' or kind == 'zset' then
    local noun = kind == 'hash' and 'a hash' or 'a sorted set'
    found = noun .. (left < 0 and ' without a TTL' or ' of another program')
  end
  if kind == 'zset' and left >= 0 and foreign == 'no lock' then
    local first = redis.pcall('zrange', KEYS[1], 0, 0)[1]
    local last = redis.pcall('zrange', KEYS[1], -1, -1)[1]
    local owner = ':' .. string.rep('%x', 32) .. ':%x+$'
    if first and string.find(first, owner) and string.find(last, owner) then
      local sides = { p = 'a semaphore', r = 'a read-write lock', w = 'a read-write lock' }
      found = sides[string.match(first, '^(.):')] or found
    end
  elseif kind == 'hash' and left >= 0 and foreign == 'no members' then
    -- A large hash is no lock, and is not read.
    local size = redis.pcall('hlen', KEYS[1])
    local fields = type(size) == 'number' and size <= 512 and redis.pcall('hgetall', KEYS[1]) or {}
    if fields[2] and string.find(fields[1], '.:%x+$') and string.find(fields[2], '^%-?%d+$') then
      found = 'a lock'
    end
  end
  foreign = redis.error_reply('WRONGTYPE found ' .. (found or 'a ' .. kind))
end

