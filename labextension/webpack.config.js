// Numbers in the order of use: the usual ones depend on the folder in which the extension is built.
module.exports = { optimization: { moduleIds: 'natural', chunkIds: 'natural' } };
