-- Part of the scripts that look at the holder of a lock. A lock is a hash with a TTL and few
-- fields, each an owner `<id>:<hex digits>` with an integer, or an owner of this library with any
-- depth, even a spoilt one; Redisson's `mode` may stand beside. A string with a TTL is a lock of
-- another library (`SET NX PX`). Anything else is another program's data: it is reported as such,
-- and a large hash is not read.
-- KEYS  1 lock
-- SETS  `left` to the TTL of the key in ms, -1 if it has none, -2 if there is no such key; `holder`
--       and `depth` to strings, or to nil; `foreign` to an error reply or nil
local left = redis.call('pttl', KEYS[1])
local holder, depth, foreign
if left ~= -2 then
  local kind = redis.call('type', KEYS[1]).ok
  local is_lock = left >= 0
  if is_lock and kind == 'string' then
    holder, depth = redis.call('getrange', KEYS[1], 0, 255), '1'
  elseif is_lock and kind == 'hash' and redis.call('hlen', KEYS[1]) <= 16 then
    local fields = redis.call('hgetall', KEYS[1])
    for i = 1, #fields, 2 do
      local ours = string.find(fields[i], string.rep('%x', 32) .. ':%x+$')
      local integer = string.find(fields[i + 1], '^%-?%d+$')
      if ours or integer and string.find(fields[i], '.:%x+$') then
        holder, depth = fields[i], fields[i + 1]
      else
        is_lock = is_lock and fields[i] == 'mode'
      end
    end
  end
  if not (is_lock and holder) then
    foreign = redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' does not hold a lock')
  end
end

