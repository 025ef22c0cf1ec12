#include "tensors.h"

#include <gtest/gtest.h>

namespace oscar::ggml_plugin {
namespace {

TEST(CacheName, KeysAndValues) {
  const auto keys = parse_cache_name("cache_k_l17");
  ASSERT_TRUE(keys);
  EXPECT_EQ(keys->side, Side::kKeys);
  EXPECT_EQ(keys->layer, 17);
  EXPECT_EQ(keys->tag, "");
  const auto values = parse_cache_name("cache_swa_v_l0");
  ASSERT_TRUE(values);
  EXPECT_EQ(values->side, Side::kValues);
  EXPECT_EQ(values->tag, "swa_");
}

TEST(CacheName, OtherTensors) {
  for (const char* name : {"", "cache_", "cache_k", "cache_k_l", "cache_k_lx", "cache_k_l3 (view)",
                           "cache_l3", "blk.0.attn_k.weight", "cache_r_l0", "leaf_3"}) {
    EXPECT_FALSE(parse_cache_name(name)) << name;
  }
  EXPECT_TRUE(is_recurrent_name("cache_r_l0"));
  EXPECT_TRUE(is_recurrent_name("cache_s_l11"));
  EXPECT_TRUE(is_recurrent_name("cache_ple_r_l2"));
  EXPECT_FALSE(is_recurrent_name("cache_k_l0"));
  EXPECT_FALSE(is_recurrent_name("node_12"));
}

TEST(RowsOf, WholeRowsOfViews) {
  ggml_tensor root{}, view{};
  root.type = GGML_TYPE_F16;
  root.ne[0] = 192;
  root.ne[1] = 100;
  root.ne[2] = 2;
  root.ne[3] = 1;
  root.nb[0] = 2;
  root.nb[1] = 384;
  view.view_src = &root;
  view.view_offs = 384 * 100;  // the second stream
  const auto rows = rows_of(&view, 384 * 3, 384 * 5);
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->first, 103);
  EXPECT_EQ(rows->count, 5);
  EXPECT_FALSE(rows_of(&view, 2, 384));
  EXPECT_FALSE(rows_of(&view, 0, 383));
  EXPECT_FALSE(rows_of(&view, 384 * 99, 384 * 2)) << "past the end";
}

}  // namespace
}  // namespace oscar::ggml_plugin
