//! Messages of channels among other replies.

use crate::harness::messages::Stream;

const SENT: &[u8] = b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$1\r\na\r\n\
    $4\r\n\r\n*1\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n\
    >3\r\n$8\r\nsmessage\r\n$1\r\na\r\n$1\r\nb\r\n+PONG\r\n";
const REPLIES: &[u8] =
    b"*3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n*2\r\n$4\r\npong\r\n$0\r\n\r\n+PONG\r\n";

#[test]
fn only_messages_are_lost_in_whatever_pieces_they_come() {
    for size in 1..=SENT.len() {
        let (mut all, mut replies) = (Stream::default(), Stream::default());
        let all = SENT.chunks(size).flat_map(|piece| all.add(piece));
        assert_eq!(all.flatten().collect::<Vec<_>>(), SENT);
        let replies = SENT.chunks(size).flat_map(|piece| replies.add_replies(piece));
        assert_eq!(replies.collect::<Vec<_>>(), REPLIES);
    }
}
