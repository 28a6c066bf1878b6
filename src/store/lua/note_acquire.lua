-- The last part of the script that acquires a lock for a hold with a note, which is written once
-- the hold has begun.
-- KEYS  as in `acquire.lua`, and last the notes
-- ARGV  as in `acquire.lua`, and last the text
-- USES  `run` and `write_note`
-- RETURNS as in `acquire.lua`
local notes, text = table.remove(KEYS), table.remove(ARGV)
local reply = run()
local first = type(reply) == 'table' and reply[1] or reply
if type(first) == 'number' and first > 0 then
  -- Deletes the notes of earlier holds, which have ended without a release.
  redis.pcall('del', notes)
  write_note(notes, KEYS[1], ARGV[1], text)
end
return reply
