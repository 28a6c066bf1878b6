//! The fields of a server's replies to INFO and CLUSTER INFO.

/// What is wrong with a node of a cluster at a URL that does not name it as one.
pub(crate) const NODE: &str =
    "a node of a cluster, which may have only a part of the names: use redis+cluster://";

/// Such a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info<'a>(&'a str);

impl<'a> Info<'a> {
    /// An empty one if the server has refused to say.
    pub(crate) fn new(reply: Option<&'a str>) -> Self {
        Self(reply.unwrap_or_default())
    }

    pub(crate) fn field(self, name: &str) -> Option<&'a str> {
        let mut fields = self.0.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
    }

    pub(crate) fn number(self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    /// Returns `true` for a node of a cluster.
    pub(crate) fn is_of_node(self) -> bool {
        self.number("cluster_enabled") == Some(1)
    }
}
