-- Reads the holder of a lock. A lock that is offered to a waiting client is not held.
-- KEYS  1 lock, 2 fence
-- USES  `left`, `holder`, `depth` and `foreign`
-- RETURNS {ms until the lease ends, owner, depth, last token}, empty if it is not held
if foreign then
  return foreign
end
if not holder or depth == '0' and string.sub(holder, -2) == ':0' then
  return {}
end
local fence = redis.pcall('get', KEYS[2])
return {left, holder, depth, type(fence) == 'string' and fence or '0'}
