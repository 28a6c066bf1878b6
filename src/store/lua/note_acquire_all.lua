-- The last part of the script that acquires several locks for holds with the same note, like
-- `note_acquire.lua`.
-- KEYS  as in `acquire_all.lua`, and last the notes of each name
-- ARGV  as in `acquire_all.lua`, and last the text
-- USES  `run` and `write_note`
-- RETURNS as in `acquire_all.lua`
local text = table.remove(ARGV)
local count, notes = #ARGV - 2, {}
for i = count, 1, -1 do
  notes[i] = table.remove(KEYS)
end
local reply = run()
if reply[1] == 1 then
  for i = 1, count do
    redis.pcall('del', notes[i])
    write_note(notes[i], KEYS[2 * i - 1], ARGV[i + 2], text)
  end
end
return reply
